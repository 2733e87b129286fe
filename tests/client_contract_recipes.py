"""What all clients keep of making recipes: of files of other tools, and for a directory of code."""

from __future__ import annotations

from pathlib import Path

from client_contract_home import ContractHome, refusal
from trainmaster.api import ClientProtocol
from trainmaster.api.embedded import EmbeddedClient
from trainmaster.spec import Recipe

_SBATCH = "#!/bin/bash\n#SBATCH --job-name=big\n#SBATCH --nodes=2\n#SBATCH --requeue\nsrun python t.py\n"
_SCRIPT = """\
import argparse
parser = argparse.ArgumentParser()
parser.add_argument("--lr", type=float, default=0.1)
options = parser.parse_args()
print("loss", options.lr)
"""


class ClientRecipesContract(ContractHome):
    """Inherited by the tests of each `ClientProtocol`."""

    def test_files_of_other_tools_become_recipes(
        self, at_home: EmbeddedClient, client: ClientProtocol
    ) -> None:
        """With what was dropped; and what is none is refused alike."""
        for source, file in ((_SBATCH, "big.sbatch"), ("torchrun --nnodes 2 train.py", "job")):
            made = client.convert(source, file)
            assert made["recipe"] == at_home.convert(source, file)["recipe"]
            assert Recipe.from_text(made["recipe"]).experiments
        for wrong in ("nothing", "name: x\nexperiments: {main: {command: 'true'}}\n"):
            assert refusal(lambda wrong=wrong: client.convert(wrong)) == refusal(  # type: ignore[misc]
                lambda wrong=wrong: at_home.convert(wrong)  # type: ignore[misc]
            )
            assert refusal(lambda wrong=wrong: client.convert(wrong)) != "none"  # type: ignore[misc]

    def test_code_gets_a_first_recipe(
        self, at_home: EmbeddedClient, client: ClientProtocol, tmp_path: Path
    ) -> None:
        """The same as at home, of a script that is looked for or named."""
        code = tmp_path / "code"
        code.mkdir()
        (code / "train.py").write_text(_SCRIPT)
        for script in (None, "train.py"):
            found = client.first_recipe(code, script)
            assert found["recipe"] == at_home.first_recipe(code, script)["recipe"]
            assert [option["name"] for option in found["options"]] == ["lr"]
        assert refusal(lambda: client.first_recipe(code, "nosuch.py")) != "none"
