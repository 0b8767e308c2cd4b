"""Chat templates in the manners of the model families, written for these tests."""

CHATML = """\
{%- if tools %}
<|im_start|>system
{% if messages[0].role == 'system' %}{{ messages[0].content + '\\n\\n' }}{% endif %}
# Tools
<tools>
{%- for tool in tools %}
{{ tool | tojson }}
{%- endfor %}
</tools><|im_end|>
{%- elif messages[0].role == 'system' %}
{{- '<|im_start|>system\\n' + messages[0].content + '<|im_end|>\\n' }}
{%- endif %}
{%- for message in messages %}
  {%- if message.role == 'user' or (message.role == 'system' and not loop.first) %}
    {{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>\\n' }}
  {%- elif message.role == 'assistant' %}
    {{- '<|im_start|>assistant\\n' }}
    {%- generation %}
    {{- message.content or '' }}
    {%- for call in message.tool_calls or [] %}
      {{- '\\n<tool_call>\\n' + (call.function | tojson) + '\\n</tool_call>' }}
    {%- endfor %}
    {{- '<|im_end|>\\n' }}
    {%- endgeneration %}
  {%- elif message.role == 'tool' %}
    {%- if loop.first or messages[loop.index0 - 1].role != 'tool' %}
      {{- '<|im_start|>user' }}
    {%- endif %}
    {{- '\\n<tool_response>\\n' + message.content + '\\n</tool_response>' }}
    {%- if loop.last or messages[loop.index0 + 1].role != 'tool' %}
      {{- '<|im_end|>\\n' }}
    {%- endif %}
  {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
  {{- '<|im_start|>assistant\\n' }}
  {%- if enable_thinking is defined and not enable_thinking %}
    {{- '<think>\\n\\n</think>\\n\\n' }}
  {%- endif %}
{%- endif %}"""

THINKING = """\
{%- set state = namespace(last=0) %}
{%- for message in messages %}
  {%- if message.role == 'user' %}{% set state.last = loop.index0 %}{% endif %}
{%- endfor %}
{%- for message in messages %}
  {{- '<|im_start|>' + message.role + (':' + message.name if message.name else '') }}
  {%- if message.reasoning_content and loop.index0 > state.last %}
    {{- '\\n<think>' + message.reasoning_content.strip() + '</think>' }}
  {%- endif %}
  {{- '\\n' + message.content | trim }}
  {%- if message.tool_calls %}{{ message.tool_calls | tojson(indent=2) }}{% endif %}
  {{- '<|im_end|>' }}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<|im_start|>assistant' }}{% endif %}
{{- reasoning_effort or '' }}"""

PARTS = """\
{{- bos_token }}
{%- for message in messages %}
  {{- '[' ~ message['role'] ~ ']' }}
  {%- if message['content'] is string %}{{ message['content'] }}{% else %}
  {%- for part in message['content'] %}
    {%- if part['type'] == 'text' %}{{ part['text'] | trim }}{% else %}?{% endif %}
    {%- if part.cache_control %}{{ part.cache_control | tojson }}{% endif %}
  {%- endfor %}{% endif %}
  {%- for call in message.tool_calls or [] %}
    {%- for name, value in call.function.arguments.items() %}
      {{- name ~ '=' ~ (value if value is string else value | tojson) }}
    {%- endfor %}
  {%- endfor %}
  {{- eos_token }}
{%- endfor %}
{%- if documents %}{{ documents | tojson }}{% endif %}
{%- if add_generation_prompt %}[assistant]{% endif %}"""

DEVELOPER = """\
{%- for message in messages %}
  {%- if message.role == 'developer' %}{% set role = 'system' %}
  {%- else %}{% set role = message.role %}{% endif %}
  {{- '<|im_start|>' ~ role ~ '\\n' ~ (message | tojson) ~ '<|im_end|>\\n' }}
{%- endfor %}"""

PLAIN = """\
{%- if messages[0].role == 'system' %}
  {%- set first = messages[0].content %}{% set messages = messages[1:] %}
{%- endif %}
{%- for message in messages %}
  {%- if message.role == 'system' %}{{ raise_exception('system is not first') }}
  {%- endif %}
  {{- message.role | upper ~ ': ' }}
  {%- if loop.last and first is defined %}{{ first ~ '\\n\\n' }}{% endif %}
  {{- message.content ~ '\\n' }}
{%- endfor %}"""

ALL = {
    "chatml": CHATML,
    "thinking": THINKING,
    "parts": PARTS,
    "developer": DEVELOPER,
    "plain": PLAIN,
}
