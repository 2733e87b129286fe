"""REST: ``/api/v1`` on `trainmaster.service`. One file per noun; `app` puts them together."""
