//! A row of the table of endpoints.

use std::sync::Arc;

use axum::routing::MethodRouter;

use crate::app::App;

/// An endpoint.
pub(crate) struct Route {
    pub(crate) path: &'static str,
    /// HTTP method, in lower case.
    pub(crate) method: &'static str,
    /// Description in one line.
    pub(crate) about: &'static str,
    pub(crate) body: RouteFields,
    pub(crate) handler: MethodRouter<Arc<App>>,
}

/// The fields of a request's body: their names, and whether the fields of all interfaces belong to
/// them.
#[derive(Clone, Copy)]
pub(crate) enum RouteFields {
    /// There is no body.
    None,
    /// Only these fields.
    Own(fn() -> Vec<&'static [&'static str]>),
    /// These fields, and those of all interfaces.
    All(fn() -> Vec<&'static [&'static str]>),
}

impl Route {
    pub(crate) fn new(
        method: &'static str,
        path: &'static str,
        about: &'static str,
        handler: MethodRouter<Arc<App>>,
    ) -> Route {
        Route { path, method, about, body: RouteFields::None, handler }
    }

    pub(crate) fn with(self, body: RouteFields) -> Route {
        Route { body, ..self }
    }
}
