"""One module for each cluster manager: submitting an application, reading its status, and killing it."""
