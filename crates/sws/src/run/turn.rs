//! A turn of a conversation while its answer is generated.

use sws_text::Message;

use crate::Generated;

const ASSISTANT: &str = "assistant";

/// Messages of a conversation whose last one awaits an answer.
#[derive(Debug)]
pub(crate) struct Turn<'a>(&'a mut Vec<Message>);

impl<'a> Turn<'a> {
    pub(crate) fn new(messages: &'a mut Vec<Message>) -> Turn<'a> {
        Turn(messages)
    }

    /// Adds the answer.
    pub(crate) fn answered(self, made: &Generated) {
        let mut message = Message::new(ASSISTANT, made.text.clone());
        message.reasoning_content =
            if made.reasoning.is_empty() { None } else { Some(made.reasoning.clone()) };
        self.0.push(message);
    }

    /// Removes the message that has no answer.
    pub(crate) fn failed(self) {
        self.0.pop();
    }
}
