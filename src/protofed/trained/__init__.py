"""What comes after training: models that answer, files of them, metrics, worth, and taking a client out."""
