"""What shows how federations learn and what they give away: a demonstration, a viewer of runs, an audit."""
