//! The kernels' source.

use sws_gpu::{Flaw, Kernel, KernelDialect, source_text};

/// Every sum is made of words that a dialect defines to be rounded once and never contracted.
#[test]
fn sums_are_made_of_defined_words() {
    for dialect in [KernelDialect::OpenCl, KernelDialect::Cuda] {
        let text = source_text(dialect, Flaw::None);
        for word in ["FMA", "MUL", "ADD"] {
            assert!(text.contains(&format!("#define {word}(a, b")), "{dialect:?} {word}");
        }
        assert!(!text.contains("SWS_SLOW\n#define SWS_"), "{dialect:?}");
    }
    let shared = source_text(KernelDialect::Cuda, Flaw::None);
    for kernel in Kernel::ALL {
        let name = kernel.name();
        let defined = [format!("({name},"), format!("void {name}(")];
        assert!(defined.iter().any(|text| shared.contains(text)), "{name}");
    }
}
