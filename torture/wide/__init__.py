"""The wider campaign: what several processes of one run can do to each other, from outside.

Never imports the product, except that its agent uses the SDK: a scenario starts the command line of
any release that is given to it, and looks at files and rows. Each kind of scenario stands for a
class of defects.
"""
