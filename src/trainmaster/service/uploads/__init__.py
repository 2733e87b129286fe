"""What is sent to a server in pieces: code and the files of volumes."""
