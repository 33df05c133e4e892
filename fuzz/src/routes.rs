//! Any bytes as recorded routes.

use sws_draft::Trace;

/// True if they were accepted: as they are, or as the numbers of routes in a file that is otherwise
/// right.
pub(crate) fn check(data: &[u8]) -> bool {
    let whole = passes(data);
    let numbers = data.split_first_chunk().is_some_and(|(form, ids)| passes(&framed(form, ids)));
    whole || numbers
}

/// Layers, experts for each, the bytes of a number, and the lengths of two sequences.
fn framed(&[layers, top_k, wide, first, second]: &[u8; 5], ids: &[u8]) -> Vec<u8> {
    let (dtype, width) = [("U8", 1), ("U16", 2), ("I32", 4)][usize::from(wide % 3)];
    let row = usize::from(layers) * usize::from(top_k) * width;
    let tokens = ids.len().checked_div(row).unwrap_or_default();
    let ids = &ids[..tokens * row];
    let lens = [first, second].map(|n| u32::from(n).to_le_bytes()).concat();
    let end = ids.len() + lens.len();
    let header = format!(
        r#"{{"ids":{{"dtype":"{dtype}","shape":[{tokens},{layers},{top_k}],"data_offsets":[0,{}]}},"lens":{{"dtype":"I32","shape":[2],"data_offsets":[{0},{end}]}}}}"#,
        ids.len(),
    );
    [&(header.len() as u64).to_le_bytes(), header.as_bytes(), ids, &lens].concat()
}

fn passes(file: &[u8]) -> bool {
    let Ok(trace) = Trace::read(file) else { return false };
    let shape = trace.shape();
    let tokens = trace.token_count();
    assert!(tokens > 0);
    assert!(trace.tokens().is_empty() || trace.tokens().len() == tokens);
    assert_eq!(trace.sequences().map(|sequence| sequence.len()).sum::<usize>(), tokens);
    assert_eq!(trace.passes(0..tokens).map(|pass| pass.len()).sum::<usize>(), tokens);
    let (last, layer) = (tokens - 1, shape.layers - 1);
    assert!(trace.experts(last, layer).iter().all(|&expert| usize::from(expert) < shape.experts));

    let written = trace.write();
    let read = Trace::read(&written).expect("what was written can be read");
    assert_eq!(read.write(), written);
    true
}
