"""After training: models that answer, exported files, metrics, worth, and taking a client out."""
