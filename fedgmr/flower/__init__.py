"""A fleet of real nodes over Flower: the server's and the client's app, and what crosses between them.

Everything that imports `flwr` is in this folder. Read `fleet.py` for the methods that the loop calls, `server_app.py`
and `client_app.py` for what runs on either side.
"""
