"""From somebody's folder to an answer: what is in it, a recipe that runs, and whether federating helps."""
