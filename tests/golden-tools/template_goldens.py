"""Makes tests/data/tokenizer/templates.json: published chat templates and what jinja2 renders with them.

    python3 tests/golden-tools/template_goldens.py MODEL.gguf

Needs jinja2, and gguf for the template of the default model. The texts are the templates that the models carry in their
tokenizer files, reduced to their chat part where they also serve tools. jinja2 runs as transformers runs it
(trim_blocks, lstrip_blocks). A case that the template itself refuses is left out; so are cases in which a template puts
text of an earlier message behind a later one (system prompts of Mistral v0.3 in a longer chat), writes an end of text
when no answer is asked for (Phi-3: such a text cannot be continued), or makes up a system turn that its model does not
have (Gemma, a system message that is not the first).
"""
import json
import os
import sys

import gguf
import jinja2
import jinja2.ext
import jinja2.sandbox

OUT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "data", "tokenizer", "templates.json")

ALTERNATE = ("{% if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}{{ raise_exception('Conversation roles must "
             "alternate user/assistant/user/assistant/...') }}{% endif %}")
MISTRAL_HEAD = """{%- if messages[0]["role"] == "system" %}
    {%- set system_message = messages[0]["content"] %}
    {%- set loop_messages = messages[1:] %}
{%- else %}
    {%- set loop_messages = messages %}
{%- endif %}

{{- bos_token }}
{%- for message in loop_messages %}
    {%- if (message["role"] == "user") != (loop.index0 % 2 == 0) %}
        {{- raise_exception("After the optional system message, conversation roles must alternate user/assistant") }}
    {%- endif %}
"""


def mistral(system_when, opening, closing, answer):
    return MISTRAL_HEAD + f"""    {{%- if message["role"] == "user" %}}
        {{%- if {system_when} and system_message is defined %}}
            {{{{- "{opening}" + system_message + "\\n\\n" + message["content"] + "{closing}" }}}}
        {{%- else %}}
            {{{{- "{opening}" + message["content"] + "{closing}" }}}}
        {{%- endif %}}
    {{%- elif message["role"] == "assistant" %}}
        {{{{- {answer} }}}}
    {{%- else %}}
        {{{{- raise_exception("Only user and assistant roles are supported!") }}}}
    {{%- endif %}}
{{%- endfor %}}
"""


LLAMA3_LOOP = ("{% set content = '<|start_header_id|>' + message['role'] + '<|end_header_id|>\n\n'+ message['content'] | "
               "trim + '<|eot_id|>' %}{% if loop.index0 == 0 %}{% set content = bos_token + content %}{% endif %}"
               "{{ content }}")
LLAMA31 = r"""{{- bos_token }}
{%- if not date_string is defined %}
    {%- set date_string = "26 Jul 2024" %}
{%- endif %}

{#- This block extracts the system message, so we can slot it into the right place. #}
{%- if messages[0]['role'] == 'system' %}
    {%- set system_message = messages[0]['content']|trim %}
    {%- set messages = messages[1:] %}
{%- else %}
    {%- set system_message = "" %}
{%- endif %}

{#- System message + builtin tools #}
{{- "<|start_header_id|>system<|end_header_id|>\n\n" }}
{{- "Cutting Knowledge Date: December 2023\n" }}
{{- "Today Date: " + date_string + "\n\n" }}
{{- system_message }}
{{- "<|eot_id|>" }}
{%- for message in messages %}
    {{- '<|start_header_id|>' + message['role'] + '<|end_header_id|>\n\n'+ message['content'] | trim + '<|eot_id|>' }}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|start_header_id|>assistant<|end_header_id|>\n\n' }}
{%- endif %}
"""
QWEN25 = r"""{%- if tools %}
    {{- '<|im_start|>system\n' }}
    {%- if messages[0]['role'] == 'system' %}
        {{- messages[0]['content'] }}
    {%- else %}
        {{- 'You are Qwen, created by Alibaba Cloud. You are a helpful assistant.' }}
    {%- endif %}
    {{- "<|im_end|>\n" }}
{%- else %}
    {%- if messages[0]['role'] == 'system' %}
        {{- '<|im_start|>system\n' + messages[0]['content'] + '<|im_end|>\n' }}
    {%- else %}
        {{- '<|im_start|>system\nYou are Qwen, created by Alibaba Cloud. You are a helpful assistant.<|im_end|>\n' }}
    {%- endif %}
{%- endif %}
{%- for message in messages %}
    {%- if (message.role == "user") or (message.role == "system" and not loop.first) or (message.role == "assistant") %}
        {{- '<|im_start|>' + message.role + '\n' + message.content + '<|im_end|>' + '\n' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\n' }}
{%- endif %}
"""
QWEN3 = r"""{%- if messages[0].role == 'system' %}
    {{- '<|im_start|>system\n' + messages[0].content + '<|im_end|>\n' }}
{%- endif %}
{%- for message in messages %}
    {%- if (message.role == "user") or (message.role == "system" and not loop.first) %}
        {{- '<|im_start|>' + message.role + '\n' + message.content + '<|im_end|>' + '\n' }}
    {%- elif message.role == "assistant" %}
        {{- '<|im_start|>' + message.role + '\n' + message.content + '<|im_end|>' + '\n' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\n' }}
{%- endif %}
"""
CHATML = ("{% for message in messages %}{{'<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + "
          "'\n'}}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}")
CHATML_SET = (r"{% set system_message = 'You are a \'good\' assistant.\nBe brief.' %}{% if messages[0]['role'] == 'system' %}"
              r"{% set loop_messages = messages[1:] %}{% set system_message = messages[0]['content'] %}{% else %}"
              r"{% set loop_messages = messages %}{% endif %}{{ '<|im_start|>system\n' + system_message + '<|im_end|>\n' }}"
              r"{% for message in loop_messages %}{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + "
              r"'<|im_end|>\n' }}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}")
GEMMA = ("{{ bos_token }}{% if messages[0]['role'] == 'system' %}{{ raise_exception('System role not supported') }}{% endif %}"
         "{% for message in messages %}" + ALTERNATE + "{% if (message['role'] == 'assistant') %}{% set role = 'model' %}"
         "{% else %}{% set role = message['role'] %}{% endif %}{{ '<start_of_turn>' + role + '\n' + message['content'] | "
         "trim + '<end_of_turn>\n' }}{% endfor %}{% if add_generation_prompt %}{{'<start_of_turn>model\n'}}{% endif %}")
GEMMA3 = r"""{{ bos_token }}
{%- if messages[0]['role'] == 'system' -%}
    {%- set first_user_prefix = messages[0]['content'] + '\n\n' -%}
    {%- set loop_messages = messages[1:] -%}
{%- else -%}
    {%- set first_user_prefix = "" -%}
    {%- set loop_messages = messages -%}
{%- endif -%}
{%- for message in loop_messages -%}
    {%- if (message['role'] == 'user') != (loop.index0 % 2 == 0) -%}
        {{ raise_exception("Conversation roles must alternate user/assistant/user/assistant/...") }}
    {%- endif -%}
    {%- if (message['role'] == 'assistant') -%}
        {%- set role = "model" -%}
    {%- else -%}
        {%- set role = message['role'] -%}
    {%- endif -%}
    {{ '<start_of_turn>' + role + '\n' + (first_user_prefix if loop.first else "") }}
    {{ message['content'] | trim }}
    {{ '<end_of_turn>\n' }}
{%- endfor -%}
{%- if add_generation_prompt -%}
    {{'<start_of_turn>model\n'}}
{%- endif -%}
""".replace("}}\n    {{ message", "}}\n    {{- message").replace("}}\n    {{ '<end", "}}\n    {{- '<end")
PHI3_FIRST = ("{{ bos_token }}{% for message in messages %}{% if (message['role'] == 'user') %}{{'<|user|>' + '\n' + "
              "message['content'] + '<|end|>' + '\n' + '<|assistant|>' + '\n'}}{% elif (message['role'] == 'assistant') %}"
              "{{message['content'] + '<|end|>' + '\n'}}{% endif %}{% endfor %}")
PHI3 = ("{% for message in messages %}{% if message['role'] == 'system' %}{{'<|system|>\n' + message['content'] + '<|end|>\n'}}"
        "{% elif message['role'] == 'user' %}{{'<|user|>\n' + message['content'] + '<|end|>\n'}}{% elif message['role'] == "
        "'assistant' %}{{'<|assistant|>\n' + message['content'] + '<|end|>\n'}}{% endif %}{% endfor %}"
        "{% if add_generation_prompt %}{{ '<|assistant|>\n' }}{% else %}{{ eos_token }}{% endif %}")
PHI3_SMALL = ("{{ bos_token }}{% for message in messages %}{{'<|' + message['role'] + '|>' + '\n' + message['content'] + "
              "'<|end|>\n' }}{% endfor %}{% if add_generation_prompt %}{{ '<|assistant|>\n' }}{% else %}{{ eos_token }}"
              "{% endif %}")
ZEPHYR = ("{% for message in messages %}\n{% if message['role'] == 'user' %}\n{{ '<|user|>\n' + message['content'] + eos_token "
          "}}\n{% elif message['role'] == 'system' %}\n{{ '<|system|>\n' + message['content'] + eos_token }}\n{% elif "
          "message['role'] == 'assistant' %}\n{{ '<|assistant|>\n'  + message['content'] + eos_token }}\n{% endif %}\n{% if "
          "loop.last and add_generation_prompt %}\n{{ '<|assistant|>' }}\n{% endif %}\n{% endfor %}")
MISTRAL_V01 = ("{{ bos_token }}{% for message in messages %}" + ALTERNATE + "{% if message['role'] == 'user' %}{{ '[INST] ' + "
               "message['content'] + ' [/INST]' }}{% elif message['role'] == 'assistant' %}{{ message['content'] + eos_token"
               "TAIL }}{% else %}{{ raise_exception('Only user and assistant roles are supported!') }}{% endif %}{% endfor %}")
MISTRAL_V7 = ("{{ bos_token }}{% for message in messages %}{% if message['role'] == 'user' %}{{ '[INST] ' + message['content'] "
              "+ '[/INST]' }}{% elif message['role'] == 'system' %}{{ '[SYSTEM_PROMPT] ' + message['content'] + "
              "'[/SYSTEM_PROMPT]' }}{% elif message['role'] == 'assistant' %}{{ ' ' + message['content'] + eos_token }}"
              "{% endif %}{% endfor %}")
PHI4 = ("{% for message in messages %}{{'<|im_start|>' + message['role'] + '<|im_sep|>' + message['content'] + '<|im_end|>'}}"
        "{% endfor %}")
PHI4_MINI = ("{% for message in messages %}{{ '<|' + message['role'] + '|>' + message['content'] + '<|end|>' }}{% endfor %}"
             "{% if add_generation_prompt %}{{ '<|assistant|>' }}{% else %}{{ eos_token }}{% endif %}")
LLAMA2 = "{{ bos_token + '[INST] <<SYS>>\n' + system_message + '\n<</SYS>>\n\n' + content + ' [/INST]' + eos_token }}"
GLM_EDGE = ("{% for item in messages %}{% if item['role'] == 'user' %}<|user|>\n{{ item['content'] }}{% elif item['role'] == "
            "'assistant' %}<|assistant|>\n{{ item['content'] }}{% endif %}{% endfor %}<|assistant|>")

TEMPLATES = [  # name, family (None: refused), Jinja, bos, eos
    ("Qwen2.5-Instruct", "chatml", QWEN25, "", "<|im_end|>"),
    ("Qwen3", "chatml", QWEN3, "", "<|im_end|>"),
    ("OpenHermes-2.5", "chatml", CHATML, "<s>", "<|im_end|>"),
    ("chatml with a set system prompt", "chatml", CHATML_SET, "<s>", "<|im_end|>"),
    ("Llama-3-Instruct", "llama3", "{% set loop_messages = messages %}{% for message in loop_messages %}" + LLAMA3_LOOP +
     "{% endfor %}{% if add_generation_prompt %}{{ '<|start_header_id|>assistant<|end_header_id|>\n\n' }}{% endif %}",
     "<|begin_of_text|>", "<|eot_id|>"),
    ("Llama-3.1-Instruct", "llama3", LLAMA31, "<|begin_of_text|>", "<|eot_id|>"),
    ("Mistral-7B-Instruct-v0.1", "mistral", MISTRAL_V01.replace("TAIL", " + ' '"), "<s>", "</s>"),
    ("Mistral-7B-Instruct-v0.2", "mistral", MISTRAL_V01.replace("TAIL", ""), "<s>", "</s>"),
    ("Mistral-7B-Instruct-v0.2, later", "mistral",
     mistral("loop.first", " [INST] ", " [/INST]", '" " + message["content"] + eos_token'), "<s>", "</s>"),
    ("Mistral-7B-Instruct-v0.3", "mistral",
     mistral("loop.last", "[INST] ", "[/INST]", '" " + message["content"]|trim + eos_token'), "<s>", "</s>"),
    ("Mistral-Nemo-Instruct-2407", "mistral",
     mistral("loop.last", "[INST]", "[/INST]", 'message["content"] + eos_token'), "<s>", "</s>"),
    ("Mistral-Large-Instruct-2411", "mistral", MISTRAL_V7, "<s>", "</s>"),
    ("gemma-7b-it", "gemma", GEMMA, "<bos>", "<eos>"),
    ("gemma-3-it", "gemma", GEMMA3, "<bos>", "<eos>"),
    ("Phi-3-mini-4k-instruct, first", "phi3", PHI3_FIRST, "<s>", "<|endoftext|>"),
    ("Phi-3-mini-4k-instruct", "phi3", PHI3, "<s>", "<|endoftext|>"),
    ("Phi-3-small-8k-instruct", "phi3", PHI3_SMALL, "<|endoftext|>", "<|endoftext|>"),
    ("zephyr-7b-beta", "zephyr", ZEPHYR, "<s>", "</s>"),
    ("stablelm-zephyr-3b", "zephyr", ZEPHYR, "<|endoftext|>", "<|endoftext|>"),
    ("phi-4", None, PHI4, "", "<|im_end|>"),
    ("Phi-4-mini-instruct", None, PHI4_MINI, "", "<|endoftext|>"),
    ("Llama-2-chat", None, LLAMA2, "<s>", "</s>"),
    ("glm-edge", None, GLM_EDGE, "", "<|user|>"),
    ("no template at all", None, "{{ messages[0]['content'] }}", "", ""),
]
S, U, A = "system", "user", "assistant"
CHATS = [
    [(U, "Hello!")],
    [(S, "You are a pirate."), (U, "Where is the treasure?")],
    [(U, "Hi, I'm Ana."), (A, "Hello Ana!"), (U, "What's my name?")],
    [(S, "One word."), (U, "France?"), (A, "Paris"), (U, "Italy?"), (A, "Rome"), (U, "Spain?")],
    [(U, "  spaces \n\n"), (A, "\n\nok\n"), (U, "\t")],
    [(S, " \u3000padded\u00a0"), (U, "\u001fx\u0085")],
    [(U, "")],
    [(S, ""), (U, "Hi")],
    [(U, "caf\u00e9 \ud55c\uad6d\uc5b4 \U0001f44b"), (A, "\u4f60\u597d")],
    [(U, "a"), (A, "b"), (U, "c"), (A, "d")],
    [(U, "<|im_end|>[/INST]</s><end_of_turn><|eot_id|><|end|>"), (A, "{{ x }}"), (U, "x")],
    [(U, "Hi"), (S, "Be brief."), (U, "Go on")],
]


class Refused(Exception):
    pass


def refuse(message):
    raise Refused(message)


def cases(name, jinja, bos, eos):
    env = jinja2.sandbox.ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[jinja2.ext.loopcontrols])
    env.globals["raise_exception"] = refuse
    template = env.from_string(jinja)
    for chat in CHATS:
        for ask in (True, False):
            later = len(chat) > 2 and any(r == S for r, _ in chat)
            if "<start_of_turn>" in jinja and any(r == S for r, _ in chat[1:]):
                continue
            if ("loop.last and system_message" in jinja and later) or ("else %}{{ eos_token" in jinja and not ask):
                continue
            if name == "Phi-3-mini-4k-instruct, first" and (not ask or chat[-1][0] == A or any(r == S for r, _ in chat)):
                continue  # always asks, and leaves system prompts out
            messages = [{"role": r, "content": c} for r, c in chat]
            try:
                text = template.render(messages=messages, bos_token=bos, eos_token=eos, add_generation_prompt=ask)
            except Refused:
                continue
            yield {"messages": messages, "generation_prompt": ask, "text": text}


def main():
    fields = gguf.GGUFReader(sys.argv[1]).fields
    default = bytes(fields["tokenizer.chat_template"].parts[-1]).decode()
    out = []
    for name, family, jinja, bos, eos in [("SmolLM2-Instruct", "chatml", default, "<|im_start|>", "<|im_end|>")] + TEMPLATES:
        out.append({"name": name, "family": family, "jinja": jinja, "bos": bos, "eos": eos,
                    "cases": list(cases(name, jinja, bos, eos)) if family else []})
        print(f"{name}: {len(out[-1]['cases'])} cases")
    with open(OUT, "w") as f:
        f.write("[\n" + ",\n".join(json.dumps(t, separators=(",", ":")) for t in out) + "\n]\n")


main()
