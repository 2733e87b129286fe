"""The client of a server: `ClientProtocol` over REST, with the standard library only, as it starts often."""
