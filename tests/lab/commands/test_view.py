"""``kvlab view``, as it is typed."""

import json

import pytest
from typer.testing import CliRunner

from kvlab.fast.lab.cli import app, main
from kvlab.fast.models import is_fetched


def test_the_page_holds_what_every_method_did(tmp_path):
    path = tmp_path / "page.html"
    options = ["--methods", "h2o full", "--budget", "60%", "--max-new-tokens", "12", "--json"]
    result = CliRunner().invoke(app, ["view", str(path), *options])
    assert result.exit_code == 0, result.output
    facts = json.loads(result.stdout)
    assert facts["file_bytes"] == path.stat().st_size
    h2o, full = facts["methods"]
    assert h2o["entries"] == h2o["budget"] < full["entries"] == full["tokens_read"]
    text = path.read_text(encoding="utf-8")
    stored = text.split('id="timeline">')[1].split("</script>")[0]
    assert [run["method"] for run in json.loads(stored)["runs"]] == ["h2o", "full"]
    assert "http://" not in text
    assert "https://" not in text


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--methods", "cat"], "unknown method 'cat'"),
        (["--budget", "0"], "budget"),
        (["--max-new-tokens", "0"], "max_new_tokens = 0"),
        (["--trace", "missing.npz"], "missing.npz"),
    ],
)
def test_bad_input_is_one_line(options, message, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("sys.argv", ["kvlab", "view", str(tmp_path / "page.html"), *options])
    with pytest.raises(SystemExit) as stopped:
        main()
    assert stopped.value.code == 2
    assert message in capsys.readouterr().err.replace("\n", " ")
    assert not (tmp_path / "page.html").exists()


@pytest.mark.slow
@pytest.mark.skipif(
    not is_fetched("smollm2"), reason="smollm2 is not on this machine: kvlab models get smollm2"
)
def test_a_model_that_speaks_is_played_while_one_method_forgets(tmp_path):
    page = tmp_path / "real.html"
    options = ["--model", "smollm2", "--problem", "0", "--budget", "60%", "--most-values", "40000"]
    chosen = [*options, "--methods", "tova streaming_llm", "--json"]
    result = CliRunner().invoke(app, ["view", str(page), *chosen])
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout)
    assert [row["solved"] for row in found["methods"]] == [True, False]
    assert len({row["budget"] for row in found["methods"]}) == 1
    assert found["file_bytes"] < 2_000_000
