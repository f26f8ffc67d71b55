"""The pytest plugin of cutrace.

It is registered with pytest and offers no option yet: tests run as they would without it. It imports nothing, since
pytest loads it into every test run of an environment that has cutrace.
"""
