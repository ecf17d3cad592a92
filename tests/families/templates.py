"""Chat templates that follow the rules of the families' own, in words of this project.

What counts is where a system message goes, whether turns must alternate, who writes BOS, what ends a turn,
and what a template adds without being asked. The texts around messages are shorter than the published ones.
"""

_ALTERNATE = (
    "{% for message in turns %}{% if message.role != ('user', 'assistant')[loop.index0 % 2] %}"
    "{{ raise_exception('turns must alternate between user and assistant') }}{% endif %}{% endfor %}"
)
_SYSTEM_APART = (
    "{% if messages[0].role == 'system' %}{% set system = messages[0].content %}"
    "{% set turns = messages[1:] %}{% else %}{% set system = '' %}{% set turns = messages %}{% endif %}"
)

LLAMA_2 = (
    _SYSTEM_APART + _ALTERNATE + "{% for message in turns %}{% if message.role == 'user' %}"
    "{{ bos_token + '[INST] ' }}{% if loop.first and system %}"
    "{{ '<<SYS>>\\n' + system + '\\n<</SYS>>\\n\\n' }}{% endif %}"
    "{{ message.content | trim + ' [/INST]' }}"
    "{% else %}{{ ' ' + message.content | trim + ' ' + eos_token }}{% endif %}{% endfor %}"
)
"""A system message stands in the first turn of the user; BOS before each of the user's turns."""

MISTRAL = (
    _SYSTEM_APART + _ALTERNATE + "{{ bos_token }}{% for message in turns %}{% if message.role == 'user' %}"
    "{{ '[INST]' }}{% if loop.last and system %}{{ system + '\\n\\n' }}{% endif %}"
    "{{ message.content + '[/INST]' }}"
    "{% else %}{{ ' ' + message.content + eos_token }}{% endif %}{% endfor %}"
)
"""As of release v0.3: a system message stands in a turn of the user that is the last message, or nowhere."""


def llama_3(date: str) -> str:
    """Every message has a header; a system block with a date is always there. `date`: a Jinja expression."""
    return (
        _SYSTEM_APART + "{% if date_string is not defined %}{% set date_string = " + date + " %}{% endif %}"
        "{{ bos_token + '<|start_header_id|>system<|end_header_id|>\\n\\nToday: ' + date_string + '\\n' }}"
        "{{ system | trim + '<|eot_id|>' }}{% for message in turns %}"
        "{{ '<|start_header_id|>' + message.role + '<|end_header_id|>\\n\\n' + message.content | trim }}"
        "{{ '<|eot_id|>' }}{% endfor %}{% if add_generation_prompt %}"
        "{{ '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}{% endif %}"
    )


LLAMA_3_1 = llama_3("'26 Jul 2024'")
LLAMA_3_2 = llama_3("strftime_now('%d %b %Y') if strftime_now is defined else '26 Jul 2024'")
"""The date is that of the day on which the template is used, unless `date_string` is given."""

_CHATML_END = "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}"
_CHATML = "{{ '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>\\n' }}"
QWEN_2_5 = (
    "{% if messages[0].role != 'system' %}{{ '<|im_start|>system\\nHelp briefly.<|im_end|>\\n' }}{% endif %}"
    "{% for message in messages %}" + _CHATML + "{% endfor %}" + _CHATML_END + "{% endif %}"
)
"""A system message is written where none is given."""

QWEN_3 = (
    "{% set last = namespace(user=-1) %}{% for message in messages %}{% if message.role == 'user' %}"
    "{% set last.user = loop.index0 %}{% endif %}{% endfor %}"
    "{% for message in messages %}{% if message.role == 'assistant' and loop.index0 > last.user %}"
    "{{ '<|im_start|>assistant\\n<think>\\n\\n</think>\\n\\n' + message.content + '<|im_end|>\\n' }}"
    "{% else %}" + _CHATML + "{% endif %}{% endfor %}" + _CHATML_END + ""
    "{% if enable_thinking is defined and enable_thinking is false %}{{ '<think>\\n\\n</think>\\n\\n' }}"
    "{% endif %}{% endif %}"
)
"""The last answer stands behind an empty block of thoughts; `enable_thinking=false` puts it into prompts."""

_GEMMA_TURNS = (
    "{% for message in turns %}"
    "{{ '<start_of_turn>' + ('model' if message.role == 'assistant' else 'user') + '\\n' }}"
    "{% if loop.first and system %}{{ system + '\\n\\n' }}{% endif %}"
    "{{ message.content | trim + '<end_of_turn>\\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<start_of_turn>model\\n' }}{% endif %}"
)
GEMMA_2 = (
    "{{ bos_token }}{% if messages[0].role == 'system' %}{{ raise_exception('no system role') }}{% endif %}"
    "{% set system = '' %}{% set turns = messages %}" + _ALTERNATE + _GEMMA_TURNS
)
GEMMA_3 = "{{ bos_token }}" + _SYSTEM_APART + _ALTERNATE + _GEMMA_TURNS
"""A system message stands in the first turn of the user."""

PHI_3 = (
    "{% for message in messages %}{{ '<|' + message.role + '|>\\n' + message.content + '<|end|>\\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|assistant|>\\n' }}{% else %}{{ eos_token }}{% endif %}"
)
"""Whatever ends without a generation prompt ends with EOS."""

OLMO_2 = (
    "{{ bos_token }}{% for message in messages %}{{ '<|' + message.role + '|>\\n' + message.content }}"
    "{% if message.role == 'assistant' %}{{ eos_token }}{% endif %}"
    "{% if message.role != 'assistant' or not loop.last %}{{ '\\n' }}{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|assistant|>\\n' }}{% endif %}"
)
"""BOS is the token that also ends a text."""
