//! Committed figures are those of the committed results.

use sws_benchmarks::report;

#[test]
fn figures_are_what_the_command_draws() {
    for (name, svg) in report::draw(&report::results()).unwrap() {
        let path = report::figures().join(name);
        let written = std::fs::read_to_string(&path).unwrap_or_default();
        assert!(svg == written, "run `sws-bench report`: `{}` is not up to date", path.display());
    }
}
