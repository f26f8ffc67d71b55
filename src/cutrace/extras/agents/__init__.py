"""For AI assistants: a skill file (``SKILL.md``), and a server of the Model Context Protocol over stdio
(``python -m cutrace.extras.agents``)."""
