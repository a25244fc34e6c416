"""OpenAI's Responses: requests, the turns they hold, and replies."""
