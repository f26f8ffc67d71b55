# Made by the build from CUPTI's headers (cmake/callback_names.py): names of functions by callback id.
RUNTIME: dict[int, str]
DRIVER: dict[int, str]
