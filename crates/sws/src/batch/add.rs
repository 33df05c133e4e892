//! Texts that are added to a batch.

use sws_model::{CausalLm, ForwardError, check_tokens};

use super::Batch;
use super::request::BatchRequest;
use super::reuse::Begun;
use super::text::{Running, end_at};
use crate::Result;
use crate::open::pooling::PooledStates;
use crate::prefix_cache::AnswerKey;
use crate::run::writer::TokenWriter;

impl Batch<'_> {
    /// Adds a text, with a number of the caller's choice. Returns the number of its tokens that
    /// another text has computed; `None` while another one is about to, of which
    /// [`Event::Begun`](super::Event) then tells. Fails if its tokens cannot be continued.
    ///
    /// # Panics
    ///
    /// If there is no [room](Self::has_room).
    pub fn add(&mut self, number: usize, mut request: BatchRequest) -> Result<Option<usize>> {
        let limit = self.model.limit();
        let vocab = self.model.vocab();
        check_tokens(&request.tokens, 0, limit, vocab)?;
        for &(token, _) in &request.bias {
            if token as usize >= vocab {
                return Err(ForwardError::UnknownToken { token, last: vocab - 1 }.into());
            }
        }
        let tokenizer = self.tokenizer.map(|tokenizer| (tokenizer, request.position));
        let mut writer =
            TokenWriter::new(&[&request.tokens], vocab, &request.generation, tokenizer)?;
        if let Some(constraint) = request.constraint.take() {
            writer.restrict(constraint.begin());
        }
        let sequence = self.take_idle(request.is_scored());
        // Requests that need the logits of every token reuse nothing of other texts.
        let anew = request.is_scored() || request.witness.is_some();
        let repeats = request.ranks.is_none() && !anew && !writer.is_restricted();
        let mut key = None;
        let mut made = Vec::new();
        if repeats {
            let of_text = AnswerKey::new(&request.generation, request.position, &request.bias);
            made = self.resume(sequence, &request, &of_text).unwrap_or_default();
            key = Some(of_text);
        }
        let prompt = &request.tokens;
        let (begun, next, known) = match made.last() {
            Some(&last) => (Begun::default(), vec![last], Some(prompt.len())),
            None => {
                let begun = self.begin(sequence, prompt, request.owner, anew);
                let next = prompt[begun.known..].to_vec();
                let known = begun.follows.is_none().then_some(begun.known);
                (begun, next, known)
            }
        };
        let mut resumed = (Vec::with_capacity(made.len()), None);
        for (position, token) in (prompt.len()..).zip(made) {
            // A token that was chosen once is in the vocabulary.
            let (piece, end) = writer.take(token).expect("a token that was chosen before");
            resumed.0.push(piece);
            resumed.1 = end_at(&writer, end, position, limit);
        }
        let pooled = request.pooling.map(PooledStates::new);
        let began = self.clock.now();
        self.running.push(Running {
            number,
            sequence,
            request,
            next,
            began,
            heard: began,
            writer,
            key,
            follows: begun.follows,
            marks: begun.marks,
            resumed,
            pooled,
        });
        Ok(known)
    }

    /// Takes an idle sequence, or the first.
    fn take_idle(&mut self, first: bool) -> usize {
        // The first sequence is reserved for texts that need it.
        let of_text = |&at: &usize| !first || self.idle[at] == 0;
        let at = (0..self.idle.len()).filter(of_text).max_by_key(|&at| self.idle[at]);
        self.idle.swap_remove(at.expect("there is room for the text"))
    }

    /// Resumes an identical earlier request. Returns the tokens that it had generated.
    fn resume(
        &mut self,
        sequence: usize,
        request: &BatchRequest,
        key: &AnswerKey,
    ) -> Option<Vec<u32>> {
        let at = self.prefixes.find_answer(&request.tokens, request.owner, key)?;
        self.held = None;
        // The resumed text is kept again when it ends. Until then, sharing its prefix would force a
        // copy.
        let entry = self.prefixes.take(at);
        let begun = self.model.begin_with(sequence, &entry.prefix, entry.tokens.len());
        if begun { Some(entry.answer?.made) } else { None }
    }
}
