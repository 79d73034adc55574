"""After training: models that answer, exported files, metrics, folds, and taking a client out."""
