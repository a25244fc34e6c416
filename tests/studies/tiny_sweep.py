"""A tiny sweep on the constructed retrievers, as text with places for three paths: three runs of two examples."""

SWEEP = """\
name: tiny
out: {out}
device: cpu
pairs: {{target: {target}, drafter: {drafter}}}
tasks:
  task: needle
  task.value: word
  tokens: 300
  examples: 6
  per_run: 2
cells:
  - grid: {{scorer: [tail, random], keep_ratio: [0.3, 0.4]}}
  - {{scorer: oracle, keep_ratio: 0.3}}
"""
