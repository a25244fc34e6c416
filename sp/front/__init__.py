"""A front for any engine: long texts of requests are shortened before another server reads them."""
