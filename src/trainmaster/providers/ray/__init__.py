"""The provider ``ray``: a Ray that others run."""
