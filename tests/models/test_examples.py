"""Examples of the documentation: models of other libraries as those of clients, without any download."""

from __future__ import annotations

from pathlib import Path

import pytest

import protofed

EXAMPLES = Path(__file__).parents[2] / "docs" / "examples"


@pytest.mark.slow  # run by .ci/run, beside the ordinary tests
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("library", "file"), [("lightning", "lightning_net"), ("transformers", "hugging_face_net")]
)
def test_a_model_of_another_library_is_a_client_s(library, file, tmp_path):
    pytest.importorskip(library, reason=f"{library} is not installed: pip install {library}")
    options = {
        "data.samples": 400,
        "data.clients": 2,
        "model.name": f"{EXAMPLES / file}.py:Net",
        "model.d": 24,
        "model.map": "linear",
        "method.name": "fedproto",
        "rounds": 3,
        "training.epochs": 3,
        "training.optimizer": "Adam",
        "training.lr": 0.005,
    }
    run = protofed.run("quickstart", {**options, "data.source": "digits"}, out=tmp_path / "run")
    assert run.clients[0].d == 24
    assert run.outcome.accuracy["head"].final > 0.25  # by chance, 0.1
    again = protofed.load_run(tmp_path / "run", trust_code=True)
    assert list(again.client(run.names[0]).classifier.class_names) == list(run.class_names)
