"""What pages, commands and the REST API read: lists with filters and paging, histories, explanations, totals."""
