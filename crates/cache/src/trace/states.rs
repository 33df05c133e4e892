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
        let found = [("routed", file.find("routed")), ("attended", file.find("attended"))];
        let Some((name, tensor)) = found.into_iter().find_map(|(n, t)| Some((n, t?))) else {
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
            let zero = |place: usize| states.bytes(0, place).iter().all(|&byte| byte == 0);
            let places: Vec<usize> = (0..layers).filter(|&place| !zero(place)).collect();
            states.places = places;
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
        state.iter_mut().zip(bytes).for_each(|(to, &x)| *to = f32::from_le_bytes(x));
    }

    fn bytes(&self, token: usize, place: usize) -> &'a [u8] {
        let len = self.hidden * size_of::<f32>();
        self.data
            .get((token * self.layers + place) * len..)
            .and_then(|rest| rest.get(..len))
            .unwrap_or_default()
    }
}
