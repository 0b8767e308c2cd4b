/* What the mock engine says, word for word. */
#ifndef CANNED_H
#define CANNED_H

static const char MODELS[] =
    "{\"object\":\"list\",\"data\":[{\"id\":\"mock\",\"object\":\"model\","
    "\"created\":1700000000,\"owned_by\":\"vllm\",\"root\":\"mock\","
    "\"parent\":null,\"max_model_len\":131072}]}";
static const char SERVER_INFO[] =
    "{\"model_path\":\"mock\",\"served_model_name\":\"mock\",\"tp_size\":1,"
    "\"dp_size\":1,\"is_generation\":true,\"max_total_num_tokens\":1000000}";
static const char METRICS[] =
    "# TYPE vllm:num_requests_running gauge\n"
    "vllm:num_requests_running{model_name=\"mock\",engine=\"0\"} 0.0\n"
    "# TYPE vllm:num_requests_waiting gauge\n"
    "vllm:num_requests_waiting{model_name=\"mock\",engine=\"0\"} 0.0\n"
    "# TYPE vllm:kv_cache_usage_perc gauge\n"
    "vllm:kv_cache_usage_perc{model_name=\"mock\",engine=\"0\"} 0.0\n"
    "# TYPE vllm:cache_config_info gauge\n"
    "vllm:cache_config_info{block_size=\"16\",num_gpu_blocks=\"26000\","
    "engine=\"0\"} 1.0\n";
static const char CHOICE[] =
    "{\"index\":0,\"message\":{\"role\":\"assistant\",\"content\":\"The quick brown "
    "fox jumps over the lazy dog. The quick brown fox jumps over the lazy dog. The "
    "quick brown fox jumps over the lazy dog.\",\"tool_calls\":[]},"
    "\"logprobs\":null,\"finish_reason\":\"stop\"}";
static const char FIRST_CHOICE[] =
    "{\"index\":0,\"delta\":{\"role\":\"assistant\",\"content\":\"\"},"
    "\"logprobs\":null,\"finish_reason\":null}";
static const char STREAM_HEAD[] =
    "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream; charset=utf-8\r\n"
    "server: mock\r\ncache-control: no-cache\r\ntransfer-encoding: chunked\r\n\r\n";
static const char STREAM_END[] = "e\r\ndata: [DONE]\n\n\r\n0\r\n\r\n";

#endif
