"""An OpenAI-compatible server for experiments: one resident pair of models, one request at a time."""
