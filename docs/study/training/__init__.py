"""How the embedded models were trained and measured."""
