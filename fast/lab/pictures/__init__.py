"""Pictures and tables for notebooks and the site, one module per subject."""
