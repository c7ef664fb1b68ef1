VERSION = "one"
