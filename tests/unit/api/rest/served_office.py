"""A server with people of each role, and with one object of each kind of another team."""

from __future__ import annotations

from served_home import RECIPE, Served
from served_services import add_service

from trainmaster.db import tables
from trainmaster.service.teams.team_volumes import volumes_url
from trainmaster.service.users.caller import ROLES, SCOPES
from trainmaster.service.volumes import push


class Office(Served):
    """A server with people: in team red one of each role, in blue a manager."""

    def __init__(self, root):
        super().__init__(root)
        for role in ROLES:
            self.add(role, "red", role)
        self.add("theirs", "blue", "manager")
        self.state.accounts.create_user("chief", is_admin=True)
        self.tokens["chief"] = self.token("chief", None)
        self.state.accounts.create_service_account("blue", "blue-bot", "member")
        self.state.secrets.put("blue", "THEIRS", "blue-value", "theirs")
        self.blue = self.objects_of_blue()

    def objects_of_blue(self):
        """One of each kind, by what stands for it in paths; what has a name has that of their token."""
        name, run = "theirs-all", "job-blue"

        def made(path, key, body):
            answer = self.ask("theirs", "POST", f"/api/v1{path}", json=body)
            assert answer.status_code < 300, answer.text
            return answer.json()[key]

        recipe = RECIPE.replace("job", name).replace("{", "{workers: 1, ") + "provider: aws\n"
        home = self.service.home
        push(home.root / "model", f"{volumes_url(home, 'blue')}/{name}", cache=home.cache)
        made("/registry", "name", {"model": run, "name": name, "alias": "production"})
        workflow = {"recipe": f"{recipe}on: {{webhook: true}}\n", "max_usd": 1}
        assert made("/workflows", "workflow", workflow) == name
        add_service(self.service.database, run, "theirs-digits", 8000)
        self.add_cluster(run, "c-theirs")
        return {
            "team": "blue",
            "name": name,
            "secret": "THEIRS",
            "cluster": "c-theirs",
            "service": "theirs-digits",
            "invite": self.state.accounts.invite("blue", "viewer")["id"],
            "upload": made("/uploads", "upload", {"name": "a.py", "size_bytes": 1, "kind": "code"}),
            "quote": made("/quotes", "id", {"recipe": recipe, "policy": "cost-opt"}),
            "plan": made("/plans", "id", {"recipe": recipe}),
            "operation": made("/operations/models-fsck", "id", {"runs": [run]}),
            "webhook": made("/webhooks", "id", {"target": "https://example.org/", "topics": ["run.ended"]}),
            "app": made("/apps", "app", {"kind": "tensorboard", "runs": [run]}),
        }

    def add_cluster(self, run, name):
        row = {"provider": "aws", "home_id": self.service.home.identity(), "state": "UP", "data": "{"}
        insert = tables.cluster.insert().values(**row, id=name, run_id=run, changed_at=1.0)
        self.service.database.write(lambda connection, _: connection.execute(insert))

    def add(self, name, team, role):
        self.state.accounts.create_user(name)
        self.state.accounts.set_member(team, name, role)
        self.tokens[name] = self.token(name, team)

    def token(self, name, team):
        return self.state.access.create_token(f"{name}-all", list(SCOPES), team, account=name)["token"]
