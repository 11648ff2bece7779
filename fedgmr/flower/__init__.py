"""A fleet of real nodes over Flower: the server's and the client's app, and the messages between them.

Everything that imports `flwr` is in this folder. Read `server/fleet.py` for the methods that the loop calls,
`server/server_app.py` and `client/client_app.py` for the programs that run on either side.
"""
