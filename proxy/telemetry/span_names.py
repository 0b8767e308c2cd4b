"""Names of span attributes: the one place that knows the conventions.

HTTP names are stable OpenTelemetry semantic conventions (1.44); ``gen_ai``
names are still in development there, so they are spelled here and not imported.
"""

ROUTE_SPAN = "warmroute.route"

FIRST_CHUNK_EVENT = "warmroute.first_token"
RETRY_EVENT = "warmroute.retry"
SPILL_OVER_EVENT = "warmroute.spill_over"
VIEW_DEGRADED_EVENT = "warmroute.view_degraded"

HTTP_METHOD = "http.request.method"
HTTP_METHOD_ORIGINAL = "http.request.method_original"
HTTP_ROUTE = "http.route"
HTTP_STATUS = "http.response.status_code"
HTTP_RESEND = "http.request.resend_count"
URL_PATH = "url.path"
URL_SCHEME = "url.scheme"
SERVER_ADDRESS = "server.address"
SERVER_PORT = "server.port"
CLIENT_ADDRESS = "client.address"
PROTOCOL_VERSION = "network.protocol.version"
USER_AGENT = "user_agent.original"
ERROR_TYPE = "error.type"

REQUEST_ID = "warmroute.request_id"
SAMPLED_BY = "warmroute.sampled_by"
POLICY = "warmroute.policy"
CANDIDATES = "warmroute.candidates"
BACKEND = "warmroute.backend"
REASON = "warmroute.reason"
GRADE = "warmroute.grade"
RANK = "warmroute.rank"
QUEUED_S = "warmroute.queued_s"
VIEW = "warmroute.view"
VIEW_DISCOUNT = "warmroute.view.discount"
RETRY_REASON = "warmroute.retry.reason"
RETRY_FROM = "warmroute.retry.from"
BEST_BACKEND = "warmroute.prefix.best_backend"
MATCHED_TOKENS = "warmroute.prefix.matched_tokens"
BEST_MATCHED_TOKENS = "warmroute.prefix.best_matched_tokens"
BLOCK_SIZE = "warmroute.block_size"
PROMPT_BLOCKS = "warmroute.prompt.blocks"
MATCHED_BLOCKS = "warmroute.prefix.matched_blocks"
BEST_MATCHED_BLOCKS = "warmroute.prefix.best_matched_blocks"
SCORE = "warmroute.score"
PREDICTED_TOKENS = "warmroute.predicted_cached_tokens"
PREDICTION_ERROR = "warmroute.prediction_error_tokens"

OPERATION = "gen_ai.operation.name"
PROVIDER = "gen_ai.provider.name"
REQUEST_MODEL = "gen_ai.request.model"
REQUEST_STREAM = "gen_ai.request.stream"
REQUEST_MAX_TOKENS = "gen_ai.request.max_tokens"
REQUEST_TEMPERATURE = "gen_ai.request.temperature"
REQUEST_TOP_P = "gen_ai.request.top_p"
INPUT_MESSAGES = "gen_ai.input.messages"
RESPONSE_MODEL = "gen_ai.response.model"
RESPONSE_ID = "gen_ai.response.id"
FINISH_REASONS = "gen_ai.response.finish_reasons"
FIRST_CHUNK_S = "gen_ai.response.time_to_first_chunk"
INPUT_TOKENS = "gen_ai.usage.input_tokens"
OUTPUT_TOKENS = "gen_ai.usage.output_tokens"
CACHED_TOKENS = "gen_ai.usage.cache_read.input_tokens"
CONVERSATION = "gen_ai.conversation.id"

# Attributes whose values hardly repeat from one request to the next.
OWN = frozenset(
    {
        *(REQUEST_ID, QUEUED_S, SCORE, PROMPT_BLOCKS, MATCHED_BLOCKS),
        *(BEST_MATCHED_BLOCKS, RESPONSE_ID, FIRST_CHUNK_S, CONVERSATION),
        *(INPUT_TOKENS, OUTPUT_TOKENS, CACHED_TOKENS, PREDICTED_TOKENS),
        *(PREDICTION_ERROR, INPUT_MESSAGES),
    }
)
ROUTES = frozenset(
    {
        *("/v1/chat/completions", "/v1/completions", "/v1/responses"),
        *("/v1/embeddings", "/v1/messages", "/v1/models", "/v1/rerank", "/v1/score"),
        *("/rerank", "/score", "/generate", "/tokenize", "/detokenize", "/health"),
    }
)
METHODS = frozenset(
    {"GET", "HEAD", "POST", "PUT", "DELETE", "CONNECT", "OPTIONS", "TRACE", "PATCH"}
)
OPERATIONS = {
    "chat": "chat",
    "messages": "chat",
    "responses": "chat",
    "completions": "text_completion",
    "generate": "text_completion",
    "embeddings": "embeddings",
}
