"""How the documents become a site: `docs/make_site.py` calls what is here."""
