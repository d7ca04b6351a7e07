"""A folder for PYTHONPATH. It holds one module, and that one takes the folder off again."""
