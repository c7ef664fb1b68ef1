"""Lists with filters, order and pages, as the REST API asks for them."""
