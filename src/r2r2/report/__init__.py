"""Reports: tables, figures and one HTML page."""
