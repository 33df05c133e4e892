//! Hidden states recorded beside routes.

use sws_format::{Dtype, HeaderTensor};

use super::file::TraceFile;
use super::{Trace, TraceError};

/// The hidden states that routers saw, in a recording of `sws run --record-hidden`.
#[derive(Clone, Debug)]
pub struct RouterStates<'a> {
    /// [tokens, layers, hidden], including layers without experts.
    data: &'a [u8],
    layers: usize,
    hidden: usize,
    /// The layers with experts.
    places: Vec<usize>,
}

impl<'a> RouterStates<'a> {
    /// Reads the states in the file of a trace. `None` if it has no states.
    pub fn read(bytes: &'a [u8], trace: &Trace) -> Result<Option<RouterStates<'a>>, TraceError> {
        if matches!(bytes.first(), Some(b'#' | b't')) {
            return Ok(None);
        }
        let file = TraceFile::open(bytes)?;
        // These states lack the output of a shared expert, which a router does not see.
        let (name, tensor) = if let Some(tensor) = file.find("routed") {
            ("routed", tensor)
        } else if let Some(tensor) = file.find("attended") {
            ("attended", tensor)
        } else {
            return Ok(None);
        };
        let wrong =
            TraceError::Tensor { name, expected: "f32 [tokens, layers, hidden] of its routes" };
        let &HeaderTensor { dtype: Dtype::F32, ref shape, .. } = tensor else { return Err(wrong) };
        let &[tokens, layers, hidden] = &shape[..] else { return Err(wrong) };
        if tokens != trace.token_count() as u64 {
            return Err(wrong);
        }
        let data = file.data(tensor);
        let layers = layers as usize;
        let hidden = hidden as usize;
        let mut states = RouterStates { data, layers, hidden, places: (0..layers).collect() };
        if layers != trace.shape().layers {
            // The states of layers without experts are 0.
            states.places.clear();
            for place in 0..layers {
                if states.bytes(0, place).iter().any(|&byte| byte != 0) {
                    states.places.push(place);
                }
            }
        }
        if states.places.len() == trace.shape().layers { Ok(Some(states)) } else { Err(wrong) }
    }

    /// Elements of a state.
    pub fn hidden(&self) -> usize {
        self.hidden
    }

    /// Writes the state that the router of a layer saw for a token. `layer` is an index among the
    /// layers with experts.
    pub fn copy(&self, token: usize, layer: usize, state: &mut [f32]) {
        let bytes = self.bytes(token, self.places[layer]).as_chunks().0;
        for (to, &x) in state.iter_mut().zip(bytes) {
            *to = f32::from_le_bytes(x);
        }
    }

    fn bytes(&self, token: usize, place: usize) -> &'a [u8] {
        let len = self.hidden * size_of::<f32>();
        let start = (token * self.layers + place) * len;
        self.data.get(start..start + len).unwrap_or_default()
    }
}
