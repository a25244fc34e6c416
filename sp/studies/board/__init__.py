"""The leaderboard: results of every scorer from records, as entries, Markdown and one HTML file."""
