"""``kvlab plan``, as it is typed."""

import json
from dataclasses import replace

import numpy as np
import pytest
from typer.testing import CliRunner

from kvlab.fast.lab.cli import app, main
from kvlab.fast.lab.planning import pays_from
from kvlab.reference import methods
from kvlab.reference.simulator.cost import Plan, Runtime, fleet
from kvlab.reference.simulator.sizes import HARDWARE, SHAPES

SHORT = ("plan", "--prompt", "64", "--length", "256")


def run(*arguments):
    result = CliRunner().invoke(app, [*SHORT, *map(str, arguments)])
    assert result.exit_code == 0, (result.output, str(result.exception))
    return result.stdout


def test_figures_are_those_of_the_cost_model():
    found = json.loads(run("--methods", "full h2o", "--budget", "128", "--gpu", "a100", "--json"))
    full, h2o = found["methods"]
    plan = Plan(SHAPES["llama-3.1-8b"], HARDWARE["a100"], methods.get("h2o", 128), 64, 256)
    servers = fleet(plan, 1_000_000)
    assert (full["budget"], h2o["budget"]) == (None, 128)
    assert h2o["devices"] == servers.devices < full["devices"]
    assert h2o["batch"] == h2o["largest_batch"] == servers.batch
    assert h2o["step_milliseconds"] == pytest.approx(
        1e3 * plan.with_batch(servers.batch).decode_seconds / 256
    )
    assert found["asked"]["hardware"]["source"] == HARDWARE["a100"].source


def test_a_method_pays_once_its_steps_have_made_up_for_its_work():
    def seconds(each: Plan) -> np.ndarray:
        return np.cumsum(each.step_seconds)

    full, h2o = (
        Plan(SHAPES["llama-3.1-8b"], HARDWARE["h20"], methods.get(*spec), 64, 2048, batch=64)
        for spec in (("full",), ("h2o", 128))
    )
    found = pays_from(h2o, full)
    assert found is not None and 128 < found < 2048
    written = found - 64
    assert seconds(h2o)[written - 1] < seconds(full)[written - 1]
    assert seconds(h2o)[written - 2] >= seconds(full)[written - 2]
    assert pays_from(full, full) is None
    alone = [replace(each, batch=1, generated=200) for each in (h2o, full)]
    assert pays_from(*alone) is None
    assert pays_from(replace(full, runtime=Runtime(bandwidth_share=1.0)), full) == 65


def test_the_table_names_methods_and_refusals():
    printed = run("--method", "full raas", "--budget", "32", "--batch", "4", "--users", "50")
    assert "llama-3.1-8b on H200" in printed
    assert "50 users at once" in printed
    assert "budget = 32 must be at least the 64 entries" in " ".join(printed.split())


def test_a_configuration_of_ones_own(tmp_path):
    config = {
        "model_type": "llama",
        "hidden_size": 64,
        "num_attention_heads": 4,
        "num_hidden_layers": 2,
        "intermediate_size": 128,
        "vocab_size": 100,
    }
    (tmp_path / "config.json").write_text(json.dumps(config))
    found = json.loads(run("--model", tmp_path, "--method", "full", "--json"))
    assert found["asked"]["shape"]["kv_heads"] == 4
    assert found["asked"]["shape"]["head_dim"] == 16


def test_the_report_needs_no_network(tmp_path):
    run("--methods", "full tova", "--report", tmp_path / "plan.html")
    html = (tmp_path / "plan.html").read_text()
    assert html.count("<svg") == 2
    assert ">tova</td>" in html
    assert "src=" not in html
    assert "http" not in html.replace("http://www.w3.org", "").replace(
        "http://purl.org", ""
    ).replace("http://creativecommons.org", "").replace("https://matplotlib.org", "")


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["--model", "nothing"], "model = 'nothing' must be"),
        (["--gpu", "tpu"], "gpu = 'tpu' must be one of"),
        (["--methods", "h3o"], "unknown method 'h3o'"),
        (["--methods", " "], "methods must name at least one method"),
        (["--budget", "0%"], "must be at least 1 entry"),
        (["--length", "0"], "length = 0 must be at least 1"),
        (["--users", "0"], "users = 0 must be at least 1"),
        (["--batch", "0"], "batch = 0 must be at least 1"),
        (["--speed", "-1"], "speed = -1.0 must be at least 0"),
        (["--host", "inf"], "host = inf must be finite"),
        (["--length", "10000000"], "length = 10000000 must be at most 200,000"),
        (["--batch", "500000"], "batch = 500000 must be at most the"),
        (["--block-size", "0"], "block_size = 0 must be at least 1"),
        (["--bandwidth-share", "2"], "bandwidth_share = 2.0 must be above 0 and at most 1"),
        (["--model", "llama-3.1-70b", "--gpu", "v100"], "does not fit on V100"),
        (["--report", "/dev/null/plan.html"], "report = /dev/null/plan.html cannot be written"),
    ],
)
def test_bad_input_ends_with_one_line(monkeypatch, capfd, arguments, reason):
    monkeypatch.setattr("sys.argv", ["kvlab", *SHORT, *arguments])
    with pytest.raises(SystemExit) as stop:
        main()
    assert stop.value.code == 2
    assert reason in capfd.readouterr().err
