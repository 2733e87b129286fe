"""What is rendered is run by a real bash: a value arrives as it is, or the placeholder is refused."""

import subprocess
from pathlib import Path

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from trainmaster.spec.template import placeholders, render

EVIL = "'; touch pwned; $(touch pwned)"
VALUES = [
    EVIL,
    "`touch pwned`",
    "a\nb",
    "",
    " ",
    "-n",
    "é ✓ 日本",
    "$HOME",
    '"',
    "\\",
    "*",
    "#x",
    "!!",
    "~",
    "2",
    "if",
    "a=b",
    "1..3",
    "a,b",
    "-1e-5",
    "resnet-50",
    "a\rb",
    "a[$(touch pwned)]",
]


def bash(script: str, directory: Path) -> str:
    process = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", "--", script],
        cwd=directory,
        capture_output=True,
        check=True,
        timeout=30,
    )
    return process.stdout.decode()


ACCEPTED = {
    "a word": "printf '%s' {{x}}",
    "with spaces in the braces": "printf '%s' {{ x }}",
    "glued to an option": "f() { printf '%s' \"${1#--x=}\"; }; f --x={{x}}",
    "assigned": "y={{x}}; printf '%s' \"$y\"",
    "behind closed quotes": "a='it''s'; printf \"%s\" {{x}}",
    "behind an escaped quote": "a=\\'; printf '%s' {{x}}",
    "behind a comment with a quote": "# don't\nprintf '%s' {{x}}",
    "behind a word with a hash": "a=b#\"'\"; printf '%s' {{x}}",
    "in a substitution": "y=$(printf '%s.' {{x}}); printf '%s' \"${y%.}\"",
    "in a substitution in quotes": "y=\"$(printf '%s.' {{x}})\"; printf '%s' \"${y%.}\"",
    "behind a here-document": "cat <<EOF >&2\nit's\nEOF\nprintf '%s' {{x}}",
    "behind a quoted here-document": "cat <<'E F' >&2\n\"\nE F\nprintf '%s' {{x}}",
    "behind an indented here-document": "cat <<-EOF >&2\n\t'\n\tEOF\nprintf '%s' {{x}}",
    "behind a here-string": "cat <<<it >&2; printf '%s' {{x}}",
    "behind a shift": "y=$((1 << 2)); printf '%s' {{x}}",
    "behind a shift in a condition": "((1 << 2)); printf '%s' {{x}}",
    "behind an expansion": "y=${HOME#/}; y=${#y}; printf '%s' {{x}}",
    "behind C quotes": "y=$'it\\'s'; printf '%s' {{x}}",
    "behind a case": "case a in (b) ;; a) printf '%s' {{x}};; esac",
    "on a continued line": "printf '%s' \\\n  {{x}}",
    "in a function": "f() {\n  printf '%s' {{x}}\n}\nf",
    "in an array": "y=({{x}} b); printf '%s' \"${y[0]}\"",
    "in a test": "[[ {{x}} == {{x}} ]] && printf '%s' {{x}}",
    "in a subshell": "(printf '%s' {{x}})",
    "behind an escaped space": "y=\\ #\\'; printf '%s' {{x}}",
    "behind a subscript": "declare -A y; y[$HOME]=d; y[\"a b\"]=1; printf '%s' {{x}}",
    "behind special variables": "y=$$'it'\"$#\"\"$$\"; printf '%s' {{x}}",
    "behind a redirection": "echo >&2 a; printf '%s' {{x}}",
    "before a redirection": "printf '%s' {{x}}>/dev/stdout",
    "at the beginning of a command": "{{x}} 2>/dev/null || true; printf '%s' {{x}}",
    "between braces": "printf '%s' {{{x}}} | { y=$(cat; printf .); y=${y%\\}.}; printf '%s' \"${y#\\{}\"; }",
}


@pytest.mark.parametrize("script", ACCEPTED.values(), ids=ACCEPTED.keys())
def test_values_arrive_as_they_are(script, tmp_path):
    for value in VALUES:
        if "\n" not in value or "here-string" not in script:
            assert bash(render(script, {"x": value}), tmp_path) == value
    assert list(tmp_path.iterdir()) == []


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@example(EVIL)
@given(st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=40))
def test_any_text_arrives_as_it_is(tmp_path, value):
    script = "printf '%s.' {{x}} \"$(printf '%s.' {{x}})\""
    rendered = bash(render(script, {"x": value}).replace("'%s.'", "%s."), tmp_path)
    assert rendered == f"{value}.{value}.."


REFUSED = {
    "echo '{{x}}'": "inside quotes; it is quoted for you",
    'echo "{{x}}"': "inside quotes; it is quoted for you",
    'echo "a\nb {{x}}"': "inside quotes",
    "echo $'{{x}}'": "inside quotes",
    'echo $"{{x}}"': "inside quotes",
    'echo "$(echo "{{x}}")"': "inside quotes",
    'echo "$(echo a) {{x}}"': "inside quotes",
    'echo "$(echo \\) a) {{x}}"': "inside quotes",
    'echo "${y:-$(echo a)} {{x}}"': "inside quotes",
    "echo a'b\\'{{x}}": "",
    "echo 'a\\'b'{{x}}'": "inside quotes",
    "echo `echo {{x}}`": "inside backticks",
    'echo "`echo {{x}}`"': "inside backticks",
    "echo ${y:-{{x}}}": "inside ${...}",
    'echo "${y:-{{x}}}"': "inside ${...}",
    "echo $(( {{x}} + 1 ))": "inside arithmetic",
    "echo $[ {{x}} + 1 ]": "inside arithmetic",
    "if (( {{x}} > 1 )); then true; fi": "inside arithmetic",
    "echo >&{{x}}": "behind '>&'",
    "echo >& a{{x}}": "behind '>&'",
    "echo >&$(echo {{x}})": "behind '>&'",
    "echo >&$(echo a){{x}}": "behind '>&'",
    "a[{{x}}]=1": "inside an array's subscript",
    "echo ${{x}}": "behind a '$'",
    "cat <<EOF\n{{x}}\nEOF": "inside a here-document",
    "cat <<'EOF'\n{{x}}\nEOF": "inside a here-document",
    "cat <<EOF\nEOF\\\nEOF\n{{x}}\nEOF": "inside a here-document",
    "cat <<EOF\na\\\nEOF\n{{x}}\nEOF": "inside a here-document",
    "cat <<A <<B\nA\n{{x}}\nB": "inside a here-document",
    "cat <<-EOF\n\t{{x}}\n\tEOF": "inside a here-document",
    'echo "$(case a in a) echo "{{x}}";; esac)"': "after a `case` inside $( )",
    "echo $(a)#\n{{x}}": "after a '#' without a space before it",
    "((a); b)\n{{x}}": "after (( without ))",
    "y=$[1]\n{{x}}": "after arithmetic as $[ ]",
    "a[b c]=1\n{{x}}": "after an intricate subscript",
    "echo $(cat <<E\nE)\n{{x}}\nE\n) {{x}}": "after a line that only begins as the end",
    'echo "$(cat <<EOF)"\n{{x}}\nEOF\n': "inside a here-document",
    "echo {{x.y}}": "'{{x.y}}'; a placeholder is {{name}}",
    "echo {{x-y}}": "a placeholder is {{name}}",
}


@pytest.mark.parametrize(("script", "expected"), REFUSED.items())
def test_where_no_value_can_be_put(script, expected):
    found = [placeholder.refusal for placeholder in placeholders(script)]
    if expected:
        assert any(expected in refusal for refusal in found), found
        with pytest.raises(ValueError, match=r"."):
            render(script, {"x": "1", "y": "2"})
    else:
        assert found == [""]


def test_what_is_no_placeholder_stays():
    script = "echo {{a,b},c} {a,b} ${y} {{}} # {{x}} it's\necho {{x}}"
    assert render(script, {"x": "1"}) == "echo {{a,b},c} {a,b} ${y} {{}} # {{x}} it's\necho 1"


PIECES = st.lists(
    st.sampled_from(
        [
            "'",
            '"',
            "$'",
            '$"',
            "`",
            "$(",
            ")",
            "(",
            "((",
            "))",
            "$((",
            "${y:-",
            "}",
            "\\",
            "#",
            " ",
            "\n",
            "<<E",
            "<<'E'",
            "<<-E",
            "E",
            ";",
            "$",
            "a",
            "case ",
            "esac",
            "[",
            "]",
            "a[",
            "{{x}}",
            "|",
            "<",
            ">",
            "&",
            "{",
            "=",
            "echo ",
            "\t",
            "$[",
        ]
    ),
    max_size=12,
).map("".join)


@settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))
@given(PIECES, PIECES)
def test_no_script_lets_a_value_be_run(tmp_path, before, after):
    """Whatever stands around it: an accepted placeholder never lets its value become code."""
    script = f"{before}{{{{x}}}}{after}"
    if any(placeholder.refusal for placeholder in placeholders(script)):
        return
    for value in (
        "'; touch pwned; '",
        '"; touch pwned; "',
        "$(touch pwned)",
        "\ntouch pwned\nE\ntouch pwned\n",
    ):
        command = ["bash", "-c", "--", render(script, {"x": value})]
        subprocess.run(
            command, cwd=tmp_path, capture_output=True, stdin=subprocess.DEVNULL, timeout=10, check=False
        )
        assert not (tmp_path / "pwned").exists(), script
