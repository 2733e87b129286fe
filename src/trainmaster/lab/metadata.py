"""The metadata service at 169.254.169.254: what a host may ask about itself, by version 1 and 2."""

from __future__ import annotations

import json
import secrets
import time
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler
from typing import Any, Final

from trainmaster.lab.cloud import Cloud

TOKEN_PATH: Final = "/latest/api/token"  # noqa: S105
TOKEN_HEADER: Final = "X-aws-ec2-metadata-token"  # noqa: S105
TTL_HEADER: Final = "X-aws-ec2-metadata-token-ttl-seconds"
LONGEST_TTL_S: Final = 21_600


class Tokens:
    """Session tokens of version 2: each is good for one host and a time."""

    def __init__(self) -> None:
        self._known: dict[str, tuple[str, float]] = {}

    def issue(self, instance: str, ttl_s: int) -> str:
        """A new one."""
        now = time.monotonic()
        self._known = {key: value for key, value in self._known.items() if value[1] > now}
        token = secrets.token_urlsafe(40)
        self._known[token] = (instance, now + ttl_s)
        return token

    def is_good(self, token: str, instance: str) -> bool:
        """Whether this host may use it."""
        owner, until = self._known.get(token, ("", 0.0))
        return owner == instance and time.monotonic() < until


def metadata(cloud: Cloud, instance: Any) -> dict[str, str]:
    """Every leaf below ``/latest/meta-data/``."""
    ip, zone = instance.private_ip, instance._placement.zone
    name = f"{'ip-' + ip.replace('.', '-')}.ec2.internal"
    mac = instance.nics[0].mac_address
    found = {
        "ami-id": instance.image_id,
        "ami-launch-index": str(instance.ami_launch_index),
        "hostname": name,
        "instance-action": "none",
        "instance-id": instance.id,
        "instance-life-cycle": instance.lifecycle or "on-demand",
        "instance-type": instance.instance_type,
        "local-hostname": name,
        "local-ipv4": ip,
        "mac": mac,
        f"network/interfaces/macs/{mac}/local-ipv4s": ip,
        f"network/interfaces/macs/{mac}/subnet-id": str(instance.subnet_id),
        f"network/interfaces/macs/{mac}/vpc-id": str(instance.vpc_id),
        "placement/availability-zone": zone,
        "placement/region": cloud.settings.region,
        "security-groups": "\n".join(group.name for group in instance.security_groups),
        "services/domain": "amazonaws.com",
        "services/partition": "aws",
    }
    if instance.public_ip:
        found["public-ipv4"] = instance.public_ip
    pair = instance.ec2_backend.key_pairs.get(instance.key_name or "")
    if pair:
        found["public-keys/0/openssh-key"] = pair.material_public.decode().strip()
    if notice := cloud.notice(instance.id):
        when = datetime.fromtimestamp(notice[0], UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        found["spot/instance-action"] = json.dumps({"action": notice[1], "time": when})
        found["spot/termination-time"] = when
    if instance.metadata_options.instance_metadata_tags == "enabled":
        found |= {f"tags/instance/{tag['key']}": tag["value"] for tag in instance.get_tags()}
    return found


def look_up(leaves: dict[str, str], path: str) -> str | None:
    r"""A leaf, or what lies below a branch; None if there is nothing.

    >>> look_up({"a/b": "1", "a/c/d": "2"}, "a/")
    'b\nc/'
    >>> look_up({"a/b": "1"}, "a/b"), look_up({"a/b": "1"}, "x")
    ('1', None)
    """
    if path in leaves:
        return leaves[path]
    branch = path.rstrip("/") + "/" if path.strip("/") else ""
    below = {leaf.removeprefix(branch) for leaf in leaves if leaf.startswith(branch)}
    names = {name.partition("/")[0] + ("/" if "/" in name else "") for name in below}
    return "\n".join(sorted(names)) if names else None


def handler_for(cloud: Cloud) -> type[BaseHTTPRequestHandler]:
    """The HTTP handler of a lab's metadata service."""
    tokens = Tokens()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        disable_nagle_algorithm = True  # head and body are two packets: the second would wait 40 ms
        server_version = "EC2ws"

        def do_PUT(self) -> None:
            found = self._who()
            if found is None:
                return
            try:
                ttl_s = int(self.headers.get(TTL_HEADER, ""))
            except ValueError:
                ttl_s = 0
            if self.path != TOKEN_PATH or "X-Forwarded-For" in self.headers:
                self._answer(403 if self.path == TOKEN_PATH else 404, "")
            elif not 1 <= ttl_s <= LONGEST_TTL_S:
                self._answer(400, "")
            else:
                self._answer(200, tokens.issue(found.id, ttl_s), {TTL_HEADER: str(ttl_s)})

        def do_GET(self) -> None:
            found = self._who()
            if found is None:
                return
            token = self.headers.get(TOKEN_HEADER)
            bad = token is not None and not tokens.is_good(token, found.id)
            if bad or (token is None and found.metadata_options.http_tokens == "required"):
                self._answer(401, "")
                return
            body = self._body(found)
            self._answer(404 if body is None else 200, body or "")

        def _body(self, instance: Any) -> str | None:
            version, _, rest = self.path.partition("?")[0].lstrip("/").partition("/")
            if not version:
                return "latest"
            part, _, path = rest.partition("/")
            if part == "meta-data":
                return look_up(metadata(cloud, instance), path)
            if part == "user-data":
                return instance.user_data.decode() if instance.user_data else None
            if rest == "dynamic/instance-identity/document":
                return json.dumps(
                    {
                        "accountId": instance.owner_id,
                        "architecture": instance.architecture,
                        "availabilityZone": instance._placement.zone,
                        "imageId": instance.image_id,
                        "instanceId": instance.id,
                        "instanceType": instance.instance_type,
                        "privateIp": instance.private_ip,
                        "region": cloud.settings.region,
                    }
                )
            return "dynamic\nmeta-data\nuser-data" if not rest else None

        def _who(self) -> Any:
            found = cloud.by_address(self.client_address[0])
            if found is None or found[0].metadata_options.http_endpoint == "disabled":
                self._answer(403, "")
                return None
            return found[0]

        def _answer(self, status: int, body: str, headers: dict[str, str] | None = None) -> None:
            data = body.encode()
            self.send_response(status)
            self.send_header("Content-Type", "text/plain")
            self.send_header("Content-Length", str(len(data)))
            for name, value in (headers or {}).items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, format: str, *args: object) -> None:
            """Hosts ask every few seconds: nothing to write down."""

    return Handler
