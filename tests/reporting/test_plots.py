import struct
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from fedgmr.reading import Reading
from fedgmr.reporting import plots
from fedgmr.reporting.chart import DASHES, Chart
from fedgmr.reporting.records import Curve, read_run

from .conftest import evaluation, write_run


def charts_of(directory: Path) -> dict[str, Chart]:
    run = read_run(directory)
    curve = Curve(seconds=run.history.seconds, mean=run.history.accuracy)
    return {
        "accuracy": plots.accuracy_figure({run.title: curve}),
        "density": plots.density_figure(run),
        "bytes": plots.bytes_figure(run),
    }


def test_importing_reporting_does_not_import_the_plotting_library() -> None:
    code = "import sys, fedgmr.reporting; sys.exit('matplotlib' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_drawing_leaves_global_plotting_state_alone(small_run: Path) -> None:
    code = (
        "import sys; from fedgmr.reporting.plots import charts_of; from fedgmr.reporting import read_run; "
        f"[chart.save({str(small_run)!r}, name) for name, chart in charts_of(read_run({str(small_run)!r})).items()]; "
        "sys.exit('matplotlib.pyplot' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
    assert (small_run / "accuracy.png").exists()


def test_every_figure_is_saved_as_png_at_150_dpi_and_as_pdf(study: list[Path], tmp_path: Path) -> None:
    images = {name: chart.save(tmp_path, name) for name, chart in charts_of(study[0]).items()}
    names = {f"{name}.{kind}" for name in ("accuracy", "density", "bytes") for kind in ("png", "pdf")}
    assert {path.name for path in tmp_path.iterdir() if path.is_file()} == names
    for name, image in images.items():
        assert (tmp_path / f"{name}.png").read_bytes() == image
        assert image.startswith(b"\x89PNG")
        assert struct.unpack(">I", image[16:20])[0] == 960  # 6.4 inches
        assert b"Software" not in image  # would differ between installations
        start = image.index(b"pHYs") + 4
        assert struct.unpack(">I", image[start : start + 4])[0] == 5906  # dots per metre
        assert (tmp_path / f"{name}.pdf").read_bytes().startswith(b"%PDF")


def test_the_same_run_gives_the_same_files(study: list[Path], tmp_path: Path) -> None:
    for folder in (tmp_path / "one", tmp_path / "two"):
        folder.mkdir()
        for name, chart in charts_of(study[0]).items():
            chart.save(folder, name)
    for path in (tmp_path / "one").iterdir():
        assert path.read_bytes() == (tmp_path / "two" / path.name).read_bytes()


def test_density_has_a_row_per_client_with_the_fastest_on_top(tmp_path: Path) -> None:
    lines = [
        evaluation(0.0, 0.1, density=[0.05, 1.0], level=[0, 4]),
        evaluation(100.0, 0.2, density=[0.1, 1.0], level=[1, 4]),
        evaluation(300.0, 0.2, density=[0.5, 1.0], level=[3, 4]),
    ]
    run = read_run(write_run(tmp_path / "run", lines, {}))
    assert run.clients_by_speed == [1, 0]
    axes, bar = plots.density_figure(run).figure.axes
    mesh = axes.collections[0]
    assert np.asarray(mesh.get_array()).tolist() == [[3, 3, 3], [0, 1, 2]]  # ranks among 0.05, 0.1, 0.5, 1
    assert [text.get_text() for text in bar.get_yticklabels()] == ["0.05", "0.1", "0.5", "1"]
    assert [text.get_text() for text in axes.get_yticklabels()] == ["1", "0"]
    assert axes.yaxis_inverted()
    assert mesh.get_coordinates()[0, :, 0].tolist() == [0.0, 50.0, 200.0, 300.0]


def test_clients_of_equal_density_keep_their_order(study: list[Path]) -> None:
    assert read_run(study[0]).clients_by_speed == list(range(10))


def test_bars_are_megabytes_down_and_up_with_the_fastest_on_top(tmp_path: Path) -> None:
    counts = {"bytes_down": [100_000_000, 200_000_000], "bytes_up": [20_000_000, 40_000_000]}
    line = evaluation(200.0, 0.7, density=[0.5, 1.0], **counts)
    axes = plots.bytes_figure(read_run(write_run(tmp_path / "run", [line], {}))).axes
    down, up = axes.containers[:2]
    assert [bar.get_width() for bar in down] == [200.0, 100.0]
    assert [bar.get_width() for bar in up] == [40.0, 20.0]
    assert axes.get_xlabel() == "data (MB)"


def test_accuracy_is_drawn_in_percent_with_band_target_and_labels() -> None:
    time = np.array([0.0, 1000.0, 2000.0])
    curves = {
        "A": Curve(seconds=time, mean=np.array([0.1, 0.5, 0.8]), spread=np.array([0.0, 0.1, 0.02])),
        "B": Curve(seconds=time, mean=np.array([0.1, 0.4, 0.7])),
    }
    axes = plots.accuracy_figure(curves, target=0.75).axes
    assert axes.lines[0].get_ydata() == pytest.approx([10, 50, 80])
    assert len(axes.collections) == 1  # a band for A only
    assert axes.collections[0].get_datalim(axes.transData).y1 == pytest.approx(82)
    words = {text.get_text() for text in axes.texts}
    assert words == {"A 80.0 %", "B 70.0 %", "target 75.0 %"}
    assert (axes.get_xlabel(), axes.get_ylabel()) == ("virtual time (s)", "accuracy (%)")


def test_an_error_is_drawn_in_its_unit_and_over_decades() -> None:
    time, error = np.array([0.0, 1000.0]), Reading(name="MAE", unit="kWh", higher_is_better=False)
    curves = {name: Curve(seconds=time, mean=np.array([16.0, last])) for name, last in (("A", 0.9), ("B", 0.91))}
    axes = plots.accuracy_figure(curves, target=0.8, reading=error).axes
    assert axes.lines[0].get_ydata() == pytest.approx([16, 0.9])
    assert (axes.get_title(loc="left"), axes.get_ylabel()) == ("MAE over virtual time", "MAE (kWh)")
    assert {text.get_text() for text in axes.texts} == {"A 0.90 kWh", "B 0.91 kWh", "target 0.8 kWh"}
    assert (axes.get_yscale(), axes.get_ylim()) == ("log", pytest.approx((0.8 / 1.2, 1.2 * 16)))
    target, first, second = sorted(text.get_position()[1] for text in axes.texts)
    assert second / first == pytest.approx(first / target), "moved apart by the same factor"
    level = {"A": Curve(seconds=time, mean=np.array([16.0, 9.0]))}
    assert plots.accuracy_figure(level, reading=error).axes.get_yscale() == "linear"


def test_methods_with_the_same_fixed_density_share_a_striped_line() -> None:
    time = np.array([0.0, 1000.0])
    curves = {
        "restoring": Curve(seconds=time, mean=np.array([0.2, 1.0])),
        "fixed": Curve(seconds=time, mean=np.array([0.2, 0.2])),
        "also fixed": Curve(seconds=time, mean=np.array([0.2, 0.2])),
    }
    axes = plots.mean_density_figure(curves).axes
    wide, first, second = axes.lines[:3]
    assert wide.get_linewidth() > first.get_linewidth() == second.get_linewidth()
    # The stripes of one fill the gaps of the other. There is no public way to read a dash pattern back.
    assert wide._unscaled_dash_pattern == (0.0, ())
    assert first._unscaled_dash_pattern == (0.0, (7.0, 7.0))
    assert second._unscaled_dash_pattern == (7.0, (7.0, 7.0))


def test_labels_move_apart_but_not_above_the_axes() -> None:
    for ends, expected in (
        ([5.0, 1.0], [1.0, 5.0]),
        ([5.0, 5.0], [4.5, 5.5]),
        ([10.0, 9.8, 9.9], [8.0, 9.0, 10.0]),
        ([-3.0, 5.0], [0.0, 5.0]),
    ):
        chart = Chart("", 2.95)  # one line of text is a tenth of the axis
        chart.axes.set_ylim(0.0, 10.0)
        for number, height in enumerate(ends):
            chart.name_line(height, str(number), "black", DASHES[0])
        chart.place_names()
        assert [text.get_position()[1] for text in chart.axes.texts] == pytest.approx(expected)


@pytest.mark.parametrize("count", [1, 2, 100])
def test_any_number_of_clients_and_evaluations_can_be_drawn(tmp_path: Path, count: int) -> None:
    clients = {name: [1] * count for name in ("level", "staleness", "updates", "bytes_down", "bytes_up")}
    line = evaluation(0.0, 0.1, density=[0.5] * count, **clients)
    directory = write_run(tmp_path / "run", [line], None)
    images = [chart.save(tmp_path, name) for name, chart in charts_of(directory).items()]
    assert len(images) == 3


def test_the_scale_of_many_densities_names_ten_with_both_ends(tmp_path: Path) -> None:
    clients = {name: [1] * 31 for name in ("level", "staleness", "updates", "bytes_down", "bytes_up")}
    line = evaluation(0.0, 0.1, density=[(number + 1) / 100 for number in range(31)], **clients)
    _, bar = plots.density_figure(read_run(write_run(tmp_path / "run", [line], {}))).figure.axes
    shown = [round(100 * float(text.get_text())) - 1 for text in bar.get_yticklabels()]
    assert shown == [0, 3, 7, 10, 13, 17, 20, 23, 27, 30]
