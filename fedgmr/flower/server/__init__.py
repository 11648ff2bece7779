"""The server's half: the app, the fleet it drives, and the threads that talk to Flower's grid."""
