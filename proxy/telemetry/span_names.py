"""Names of span attributes: the one place that knows the conventions.

HTTP names are stable OpenTelemetry semantic conventions (1.44); ``gen_ai``
names are still in development there, so they are spelled here and not imported.
"""

from typing import Final

ROUTE_SPAN: Final = "warmroute.route"

FIRST_CHUNK_EVENT: Final = "warmroute.first_token"
RETRY_EVENT: Final = "warmroute.retry"
SPILL_OVER_EVENT: Final = "warmroute.spill_over"
VIEW_DEGRADED_EVENT: Final = "warmroute.view_degraded"

HTTP_METHOD: Final = "http.request.method"
HTTP_METHOD_ORIGINAL: Final = "http.request.method_original"
HTTP_ROUTE: Final = "http.route"
HTTP_STATUS: Final = "http.response.status_code"
HTTP_RESEND: Final = "http.request.resend_count"
URL_PATH: Final = "url.path"
URL_SCHEME: Final = "url.scheme"
SERVER_ADDRESS: Final = "server.address"
SERVER_PORT: Final = "server.port"
CLIENT_ADDRESS: Final = "client.address"
PROTOCOL_VERSION: Final = "network.protocol.version"
USER_AGENT: Final = "user_agent.original"
ERROR_TYPE: Final = "error.type"

REQUEST_ID: Final = "warmroute.request_id"
SAMPLED_BY: Final = "warmroute.sampled_by"
POLICY: Final = "warmroute.policy"
CANDIDATES: Final = "warmroute.candidates"
BACKEND: Final = "warmroute.backend"
REASON: Final = "warmroute.reason"
GRADE: Final = "warmroute.grade"
RANK: Final = "warmroute.rank"
QUEUED_S: Final = "warmroute.queued_s"
VIEW: Final = "warmroute.view"
VIEW_DISCOUNT: Final = "warmroute.view.discount"
RETRY_REASON: Final = "warmroute.retry.reason"
RETRY_FROM: Final = "warmroute.retry.from"
BEST_BACKEND: Final = "warmroute.prefix.best_backend"
MATCHED_TOKENS: Final = "warmroute.prefix.matched_tokens"
BEST_MATCHED_TOKENS: Final = "warmroute.prefix.best_matched_tokens"
BLOCK_SIZE: Final = "warmroute.block_size"
PROMPT_BLOCKS: Final = "warmroute.prompt.blocks"
MATCHED_BLOCKS: Final = "warmroute.prefix.matched_blocks"
BEST_MATCHED_BLOCKS: Final = "warmroute.prefix.best_matched_blocks"
SCORE: Final = "warmroute.score"
PREDICTED_TOKENS: Final = "warmroute.predicted_cached_tokens"
PREDICTION_ERROR: Final = "warmroute.prediction_error_tokens"

OPERATION: Final = "gen_ai.operation.name"
PROVIDER: Final = "gen_ai.provider.name"
REQUEST_MODEL: Final = "gen_ai.request.model"
REQUEST_STREAM: Final = "gen_ai.request.stream"
REQUEST_MAX_TOKENS: Final = "gen_ai.request.max_tokens"
REQUEST_TEMPERATURE: Final = "gen_ai.request.temperature"
REQUEST_TOP_P: Final = "gen_ai.request.top_p"
INPUT_MESSAGES: Final = "gen_ai.input.messages"
RESPONSE_MODEL: Final = "gen_ai.response.model"
RESPONSE_ID: Final = "gen_ai.response.id"
FINISH_REASONS: Final = "gen_ai.response.finish_reasons"
FIRST_CHUNK_S: Final = "gen_ai.response.time_to_first_chunk"
INPUT_TOKENS: Final = "gen_ai.usage.input_tokens"
OUTPUT_TOKENS: Final = "gen_ai.usage.output_tokens"
CACHED_TOKENS: Final = "gen_ai.usage.cache_read.input_tokens"
CONVERSATION: Final = "gen_ai.conversation.id"

# Text that no two requests share, or few.
UNIQUE: Final = frozenset({REQUEST_ID, RESPONSE_ID, CONVERSATION, INPUT_MESSAGES})
ROUTES: Final = frozenset(
    {
        *("/v1/chat/completions", "/v1/completions", "/v1/responses"),
        *("/v1/embeddings", "/v1/messages", "/v1/models", "/v1/rerank", "/v1/score"),
        *("/rerank", "/score", "/generate", "/tokenize", "/detokenize", "/health"),
    }
)
METHODS: Final = frozenset(
    {"GET", "HEAD", "POST", "PUT", "DELETE", "CONNECT", "OPTIONS", "TRACE", "PATCH"}
)
OPERATIONS: Final = {
    "chat": "chat",
    "messages": "chat",
    "responses": "chat",
    "completions": "text_completion",
    "generate": "text_completion",
    "embeddings": "embeddings",
}
