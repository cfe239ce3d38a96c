"""Words of a question that say nothing about what is looked for."""

from __future__ import annotations

ENGLISH = frozenset(
    """
    a about again all also am an and any are as at be been being but by can could d did do does doing for from had has
    have having he her here hers him his how i if in into is it its just ll m may me might mine must my no not of on or
    our ours out re s shall she should so some such t than that the their theirs them then there these they this those
    to too up us ve very was we were what when where which while who whom whose why will with would you your yours
    dont didnt doesnt isnt wasnt werent cant couldnt wont wouldnt im ive id ill youre youve youll hes shes theyre weve
    please tell remember know
    """.split()
)

CHINESE = frozenset(
    """
    的 了 和 是 在 我 你 您 他 她 它 们 我们 你们 他们 她们 它们 咱们 有 也 都 就 不 没 没有 吗 呢 吧 啊 呀
    哦 嗯 嘛 哈 啦 这 那 这个 那个 这些 那些 这里 那里 这样 那样 什么 哪 哪个 哪些 哪里 哪儿 怎么 怎样
    怎么样 如何 为什么 为何 谁 几 多少 曾 曾经 一 个 一个 一些 一下 与 及 或 或者 对 把 被 让 给 跟 从 到
    向 于 以 为 而 但 但是 因为 所以 如果 虽然 然后 很 太 非常 最 更 还 还是 又 再 已经 过 着 地 得 之 其
    中 上 下 里 时 时候 请 请问 会 能 可以 要 想 说 来 去 只 才 当 记得 知道 告诉 是否 是不是 有没有 并
    并且 那么 还有
    """.split()
)
