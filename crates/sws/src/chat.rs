//! Conversations and their messages.

use sws_model::check_tokens;
use sws_model::text::{
    ChatOptions, ChatTemplate, Generation, GenerationOptions, Message, Position,
};
use sws_store::Clock;

use crate::{Generate, LoadedModel, Result};

/// A conversation, independent of the model that answers: one model can serve several in turn. The
/// part of a conversation still in the model's sequence is not computed again.
#[derive(Clone, Debug)]
pub struct Conversation {
    messages: Vec<Message>,
    template: ChatTemplate,
    generation: Generation,
    /// Number of answers begun: each has its own random numbers.
    answers: u64,
}

impl Conversation {
    /// Creates an empty conversation. Without a limit of new tokens, an answer can fill the
    /// context.
    pub fn new(template: ChatTemplate, generation: Generation) -> Conversation {
        Conversation { messages: Vec::new(), template, generation, answers: 0 }
    }

    /// Puts a system message before all others.
    pub fn system(mut self, text: impl Into<String>) -> Conversation {
        self.messages.insert(0, message("system", text.into()));
        self
    }

    /// The messages so far.
    pub fn messages(&self) -> &[Message] {
        &self.messages
    }

    /// Removes all messages except the system message.
    pub fn reset(&mut self) {
        self.messages.retain(|message| message.role == "system");
    }
}

impl LoadedModel {
    /// Begins a conversation with the model's chat template.
    pub fn conversation(&self, options: &GenerationOptions) -> Result<Conversation> {
        let generation = self.model.generation(options)?;
        let template = match self.text.template() {
            Some(template) => template.clone(),
            None => self.model.chat_template()?,
        };
        Ok(Conversation::new(template, generation))
    }

    /// Answers `text` in a conversation. The message and the answer, even an incomplete one, are
    /// added when the answer ends or is dropped. On failure neither is.
    pub fn chat<'a>(
        &'a mut self,
        conversation: &'a mut Conversation,
        text: &str,
    ) -> Result<Generate<'a>> {
        conversation.messages.push(message("user", text.to_owned()));
        let prompt = self.prompt(conversation);
        let started = prompt
            .and_then(|(tokens, generation)| self.start(tokens, &generation, Position::Start));
        if started.is_err() {
            conversation.messages.pop();
        }
        Ok(started?.in_turn(Turn(&mut conversation.messages)))
    }

    /// Tokens of a conversation, and the options of the next answer.
    fn prompt(&self, conversation: &mut Conversation) -> Result<(Vec<u32>, Generation)> {
        let options = ChatOptions {
            add_generation_prompt: true,
            now: Clock::real().unix_seconds(),
            ..ChatOptions::default()
        };
        let prompt = conversation.template.render(&conversation.messages, &options);
        let prompt = prompt.map_err(|e| self.model.error(e))?;
        let tokens = self.text.encode(&self.model, &prompt, false)?;
        check_tokens(&tokens, 0, self.limit(), self.model.spec().vocab)?;
        let mut generation = conversation.generation.clone();
        generation.sampling.seed = generation.sampling.seed.wrapping_add(conversation.answers);
        conversation.answers += 1;
        Ok((tokens, generation))
    }
}

/// Messages of a conversation whose last one awaits an answer.
#[derive(Debug)]
pub(crate) struct Turn<'a>(&'a mut Vec<Message>);

impl Turn<'_> {
    /// Adds the answer.
    pub(crate) fn answered(self, text: &str) {
        self.0.push(message("assistant", text.to_owned()));
    }

    /// Removes the message that has no answer.
    pub(crate) fn failed(self) {
        self.0.pop();
    }
}

fn message(role: &str, content: String) -> Message {
    Message { role: role.to_owned(), content }
}
