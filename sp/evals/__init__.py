"""Tests of what a selection keeps: tasks that make prompts with known answers, and how answers are judged."""
